"""Dies in the middle of a transaction that has written to the database already."""

import os
import signal
import sqlite3
import sys

database = sqlite3.connect(sys.argv[1], timeout=300, isolation_level=None)
database.execute("pragma cache_size = 5")
database.execute("begin immediate")
database.execute("update big set text = 'lost'")
assert os.path.getsize(sys.argv[1] + "-journal") > 100_000
os.kill(os.getpid(), signal.SIGKILL)
