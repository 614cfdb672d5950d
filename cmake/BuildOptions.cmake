# Flags for our own targets only, so that packages found by CMake are not affected.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library(torchnan_build_options INTERFACE)
add_library(torchnan::build_options ALIAS torchnan_build_options)
target_compile_options(torchnan_build_options INTERFACE
  -fno-semantic-interposition
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-unused-parameter
  $<$<BOOL:${TORCHNAN_WERROR}>:-Werror>
)
if(TORCHNAN_PYTHON AND NOT TORCHNAN_EDITABLE)  # a wheel names no path of the machine that built it
  target_compile_options(torchnan_build_options INTERFACE
    -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=
    -ffile-prefix-map=${TORCHNAN_TORCH_DIR}/=torch/)
endif()
if(TORCHNAN_SANITIZERS)
  target_compile_options(torchnan_build_options INTERFACE
    -fsanitize=${TORCHNAN_SANITIZERS} -fno-omit-frame-pointer -g)
  target_link_options(torchnan_build_options INTERFACE -fsanitize=${TORCHNAN_SANITIZERS})
endif()

find_program(CCACHE ccache)
if(CCACHE)
  # A precompiled header carries a time stamp that would defeat the cache, and must be seen by ccache's preprocessor.
  # Paths within a clone are relative, so clones share the cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
  target_compile_options(torchnan_build_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()
