"""What a fit of Lightning holds beside models, optimizers and schedulers, as portable state."""
