"""What ``framefit treeify`` consists of: the network with trees in it, the search, the fine-tuning, the files."""
