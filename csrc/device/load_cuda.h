// The kernel library for CUDA, found at run time: the core is built, imported and used without a toolkit or a GPU.
#pragma once

#include "device/scanner.h"

namespace torchnan {

// Loads libtorchnan_cuda.so from the folder of the core library, or the folder above it. Throws std::runtime_error that
// says what is missing. Called once: the result lives as long as the process.
const ScanFunctions& load_cuda();

}  // namespace torchnan
