"""What `mirror verify` runs in the environment being verified: probes and a short training.

This package imports nothing of mirror. It runs by the path of its `__main__.py`, in the
environment's own interpreter (Python 3.9 or newer), and needs torch, accelerate and safetensors
only for `train`. Every command leaves its answer as one JSON file, renamed into place.
"""
