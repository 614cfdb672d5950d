# torchnan::json: nlohmann-json, from its PyPI package or from the system.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.util as u; print(u.find_spec('nlohmann_json').submodule_search_locations[0] + '/include')"
    OUTPUT_VARIABLE json_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_path(TORCHNAN_JSON_INCLUDE nlohmann/json.hpp HINTS ${json_dir})
if(NOT TORCHNAN_JSON_INCLUDE)
  message(FATAL_ERROR "nlohmann/json.hpp was not found: pip install nlohmann-json, or apt install nlohmann-json3-dev.")
endif()
add_library(torchnan_json INTERFACE)
add_library(torchnan::json ALIAS torchnan_json)
target_include_directories(torchnan_json SYSTEM INTERFACE ${TORCHNAN_JSON_INCLUDE})
