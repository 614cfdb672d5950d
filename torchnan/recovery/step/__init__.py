"""Around one training step: is it good, do all ranks say so, and what does it do when it runs again?"""
