# torchnan::torch: libc10 and libtorch_cpu of the PyTorch in TORCHNAN_TORCH_DIR, and its version.
# find_package(Torch) would do, but on a CUDA build it insists on a CUDA toolkit, which is not needed here.
set(version_header ${TORCHNAN_TORCH_DIR}/include/torch/headeronly/version.h)
if(NOT EXISTS ${version_header})
  message(FATAL_ERROR "torchnan needs PyTorch 2.11 or later: there is no ${version_header}. "
    "Set TORCHNAN_TORCH_DIR to the folder that holds torch's include/ and lib/.")
endif()
file(STRINGS ${version_header} version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" TORCHNAN_TORCH_VERSION "${version_lines}")
string(REPLACE ";" "." TORCHNAN_TORCH_VERSION "${TORCHNAN_TORCH_VERSION}")
string(REGEX REPLACE "\\.[0-9]+$" "" TORCHNAN_TORCH_RELEASE "${TORCHNAN_TORCH_VERSION}")
if(TORCHNAN_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "torchnan needs PyTorch 2.11 or later; ${TORCHNAN_TORCH_DIR} holds ${TORCHNAN_TORCH_VERSION}.")
endif()

# The OpenMP runtime that libtorch runs on: a second one beside it would start separate threads.
file(GLOB TORCHNAN_TORCH_OPENMP ${TORCHNAN_TORCH_DIR}/lib/libgomp*.so*)

add_library(torchnan::torch INTERFACE IMPORTED)
set_target_properties(torchnan::torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES
    "${TORCHNAN_TORCH_DIR}/include;${TORCHNAN_TORCH_DIR}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES
    "${TORCHNAN_TORCH_DIR}/lib/libtorch_cpu.so;${TORCHNAN_TORCH_DIR}/lib/libc10.so;${TORCHNAN_TORCH_OPENMP}"
  INTERFACE_COMPILE_FEATURES cxx_std_20
)
