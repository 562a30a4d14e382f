"""The patches of Keras 3, and the driver that each strategy supplies to them."""
