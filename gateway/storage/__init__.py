# Storage protection: where the fill of the cluster's volumes is looked up, and what control does with it.
