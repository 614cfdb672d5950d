# Asks Python where PyTorch is, unless TORCHNAN_TORCH_DIR says so.
if(NOT TORCHNAN_TORCH_DIR)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE TORCHNAN_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)
    message(FATAL_ERROR "PyTorch was not found by ${Python3_EXECUTABLE}. "
      "Install it there, or set TORCHNAN_TORCH_DIR to the folder that holds torch's include/ and lib/.")
  endif()
endif()
include(TorchWheel)
message(STATUS "PyTorch ${TORCHNAN_TORCH_VERSION} in ${TORCHNAN_TORCH_DIR}")
