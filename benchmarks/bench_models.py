"""A pull from S3 in parallel ranges beside one plain stream from the same server. One JSON line."""

import subprocess
import sys

if __name__ == "__main__":
    subprocess.run([sys.executable, "-m", "filmgate", "bench", "models", "--json", *sys.argv[1:]], check=True)
