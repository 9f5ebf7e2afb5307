"""What is to be run: the decisions of the user, the cells, the workloads, the floors."""
