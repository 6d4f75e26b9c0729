"""What commands print: tables and pictures of rich's, at their best from 80 columns."""
