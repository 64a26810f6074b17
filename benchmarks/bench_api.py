"""Creates a second beside a bare endpoint, watchers, memory over 100,000 creates. One JSON line."""

import subprocess
import sys

if __name__ == "__main__":
    subprocess.run([sys.executable, "-m", "filmgate", "bench", "api", "--json", *sys.argv[1:]], check=True)
