"""Small tasks that ask one thing of a mixer: the tasks, their training, their report."""
