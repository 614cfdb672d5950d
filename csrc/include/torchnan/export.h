#pragma once

// What the shared library shows to its users; everything else in it is hidden.
#define TORCHNAN_API __attribute__((visibility("default")))
