"""Transactions on a database that others use at the same time: each adds a row and counts it."""

import sqlite3
import sys

path, name, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = sqlite3.connect(path, timeout=300, isolation_level=None)
for number in range(times):
    database.execute("begin immediate")
    (count,) = database.execute("select count from total").fetchone()
    database.execute("insert into rows values (?, ?, ?)", (name, number, count))
    database.execute("update total set count = ?", (count + 1,))
    database.execute("commit")
database.close()
