"""From the last frame to a link, against an S3 emulator in a process of its own: `filmgate bench store`."""

import os
import subprocess
import sys

import boto3

SERVER = (
    "from moto.server import ThreadedMotoServer as S; import sys\n"
    "s = S(ip_address='127.0.0.1', port=0, verbose=False); s.start()\n"
    "print(s.get_host_and_port()[1], flush=True); sys.stdin.read(); s.stop()"
)
AWS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}

if __name__ == "__main__":
    os.environ.update(AWS)
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe, stderr=null) as server:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        boto3.client("s3", endpoint_url=url).create_bucket(Bucket="bench")
        environ = os.environ | {"FILMGATE_STORE__URL": "s3://bench/films", "FILMGATE_STORE__ENDPOINT": url}
        command = [sys.executable, "-m", "filmgate", "bench", "store", "--json", *sys.argv[1:]]
        subprocess.run(command, env=environ, check=True)
