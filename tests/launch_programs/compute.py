"""Imports TensorFlow, and computes with it once it is given a line."""

import sys

import tensorflow as tf

print("imported", flush=True)
sys.stdin.readline()
tf.constant(1)
print("computed", flush=True)
sys.stdin.readline()
