"""Decision trees in place of layers: quantising, fitting, running and exporting them."""
