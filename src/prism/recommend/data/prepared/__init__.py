"""Logs of any size as Parquet partitions by a hash of the user: made once, read one partition at a time."""
