# The tests of the scan for another processor, run by an emulator. They need no more of PyTorch than its headers and libc10:
# the emulator cannot run libtorch. The system's GoogleTest is for this processor, so its sources are compiled too.
add_executable(torchnan_scan_tests
  check/scan/finite_scan_test.cpp
  check/scan/norm_scan_test.cpp
  check/scan/strided_view_test.cpp
  ${PROJECT_SOURCE_DIR}/csrc/check/scan/finite_scan.cpp
  ${PROJECT_SOURCE_DIR}/csrc/check/scan/isa_dispatch.cpp
  ${PROJECT_SOURCE_DIR}/csrc/check/scan/norm_scan.cpp
  ${PROJECT_SOURCE_DIR}/csrc/check/scan/strided_view.cpp
  /usr/src/googletest/googletest/src/gtest-all.cc
  /usr/src/googletest/googletest/src/gtest_main.cc
)
target_link_libraries(torchnan_scan_tests PRIVATE ${TORCHNAN_TORCH_DIR}/lib/libc10.so torchnan::build_options)
target_include_directories(torchnan_scan_tests PRIVATE
  ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/csrc ${PROJECT_SOURCE_DIR}/csrc/include)
target_include_directories(torchnan_scan_tests SYSTEM PRIVATE
  ${TORCHNAN_TORCH_DIR}/include /usr/src/googletest/googletest /usr/src/googletest/googletest/include)
add_test(NAME torchnan_scan_tests COMMAND torchnan_scan_tests --gtest_filter=-Long*:*avx*)
