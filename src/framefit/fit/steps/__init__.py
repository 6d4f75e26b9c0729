"""The changes that ``framefit fit`` may make, one file each."""
