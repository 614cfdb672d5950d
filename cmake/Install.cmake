# Where things go: a CMake package for C++ users. A Python package holds the same, in the folder torchnan/. It may hold
# cores for several releases of PyTorch, each installed by a build for that release; all else is the same for all.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(TORCHNAN_PYTHON)
  set(lib_dir lib/torch${TORCHNAN_TORCH_RELEASE})
  set(cuda_dir lib)
  set(include_dir include)
  set(config_dir share/cmake/torchnan)
  set(fixed_torch_dir "")  # a wheel goes to other machines: PyTorch is beside it
  set(torch_rpath "$ORIGIN/../../../torch/lib")  # site-packages/torchnan/lib/torch2.13 to site-packages/torch/lib
  if(TORCHNAN_EDITABLE)
    set(fixed_torch_dir ${TORCHNAN_TORCH_DIR})  # the package stays in its source folder
    set(torch_rpath ${TORCHNAN_TORCH_DIR}/lib)
  endif()
  install(TARGETS _C LIBRARY DESTINATION ${lib_dir})
  configure_file(cmake/_build.py.in ${PROJECT_BINARY_DIR}/_build.py @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/_build.py DESTINATION .)
  set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN:${torch_rpath}")
else()
  set(lib_dir ${CMAKE_INSTALL_LIBDIR})
  set(cuda_dir ${lib_dir})
  set(include_dir ${CMAKE_INSTALL_INCLUDEDIR})
  set(config_dir ${CMAKE_INSTALL_DATADIR}/cmake/torchnan)
  set(fixed_torch_dir ${TORCHNAN_TORCH_DIR})
  set(torch_rpath ${TORCHNAN_TORCH_DIR}/lib)
endif()
set_target_properties(torchnan PROPERTIES INSTALL_RPATH "${torch_rpath}")

install(TARGETS torchnan EXPORT torchnanTargets LIBRARY DESTINATION ${lib_dir})
if(TORCHNAN_HAS_CUDA)
  install(TARGETS torchnan_cuda LIBRARY DESTINATION ${cuda_dir})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/csrc/include/torchnan DESTINATION ${include_dir})
install(EXPORT torchnanTargets NAMESPACE torchnan:: DESTINATION ${config_dir}/torch${TORCHNAN_TORCH_RELEASE})
configure_package_config_file(cmake/torchnanConfig.cmake.in ${PROJECT_BINARY_DIR}/torchnanConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/torchnanConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/torchnanConfig.cmake ${PROJECT_BINARY_DIR}/torchnanConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/TorchWheel.cmake DESTINATION ${config_dir})
