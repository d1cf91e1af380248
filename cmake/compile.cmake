# How our own code is compiled: warnings, sanitizers, the compiler cache, precompiled headers.

# A compiler cache, where there is one. With a base directory, so that a clone in another folder
# finds what the first has compiled; precompiled headers need the sloppiness.
option(DGC_CCACHE "Compile through ccache if it is installed" ${PROJECT_IS_TOP_LEVEL})
find_program(DGC_CCACHE_PROGRAM ccache)
mark_as_advanced(DGC_CCACHE_PROGRAM)
if(DGC_CCACHE AND DGC_CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${DGC_CCACHE_PROGRAM})
endif()

# What every target of ours is compiled with.
add_library(dgc_flags INTERFACE)
target_compile_options(dgc_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wno-sign-conversion
  -Wno-missing-field-initializers  # designated initialisers leave the rest at their defaults
  # A fused multiply-add rounds once where two operations round twice: results would depend on the
  # instruction set.
  -ffp-contract=off
  $<$<BOOL:${DGC_WARNINGS_AS_ERRORS}>:-Werror>)
if(DGC_SANITIZE)
  target_compile_options(dgc_flags INTERFACE -fsanitize=${DGC_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(dgc_flags INTERFACE -fsanitize=${DGC_SANITIZE})
endif()
# GCC's precompiled headers are cached only if the compiler names them when it preprocesses.
target_compile_options(dgc_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)

# Code that no loop of a training step spends its time in. A third less time to compile.
add_library(dgc_light_flags INTERFACE)
target_link_libraries(dgc_light_flags INTERFACE dgc_flags)
target_compile_options(dgc_light_flags INTERFACE $<$<CONFIG:Release>:-O1>)

# A library that is installed: dgc::NAME, lib OUTPUT.
function(dgc_public_library target name output)
  add_library(dgc::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output} EXPORT_NAME ${name}
                        VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:dgc_flags> fmt::fmt)
endfunction()

# Precompiled headers, compiled once each and used by all targets. Executables are compiled as -fPIE
# unless told otherwise, and then cannot use a header that was compiled as -fPIC.
function(dgc_add_headers target)
  file(WRITE ${PROJECT_BINARY_DIR}/${target}.cpp "")
  add_library(${target} OBJECT ${PROJECT_BINARY_DIR}/${target}.cpp)
  target_link_libraries(${target} PRIVATE dgc_flags fmt::fmt)
  target_precompile_headers(${target} PRIVATE ${ARGN})
endfunction()
function(dgc_use_headers headers)
  foreach(target IN LISTS ARGN)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
    target_link_libraries(${target} PRIVATE fmt::fmt)  # its definitions have to be the same
    # clang writes the folder's name into the header, so that the compiler cache of another clone
    # knows none of the files that use it. Without the header it knows them all.
    if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      target_precompile_headers(${target} REUSE_FROM ${headers})
    endif()
  endforeach()
endfunction()

# JSON, text and the standard library: 3 s a file without.
dgc_add_headers(dgc_common_headers <chrono> <filesystem> <fmt/format.h> <functional> <map> <memory>
                <optional> <span> <sstream> <string> <thread> <vector> <nlohmann/json.hpp>)
if(DGC_BUILD_APPS)
  find_package(CLI11 REQUIRED)
  dgc_add_headers(dgc_command_headers <filesystem> <fmt/format.h> <functional> <memory> <optional>
                  <span> <string> <vector> <nlohmann/json.hpp> <CLI/CLI.hpp>)
endif()
option(DGC_UNITY "Compile files that include libtorch four at a time" ON)
# A file that includes libtorch takes 25 s without it, and 4 s with it before its own first line:
# small files share one compilation.
if(DGC_WITH_TORCH)
  dgc_add_headers(dgc_torch_headers <torch/torch.h>)
  target_link_libraries(dgc_torch_headers PRIVATE dgc_libtorch)
  # PyTorch's own packages bring headers of another fmt than the system's, which are found first.
  if(EXISTS ${DGC_TORCH_INCLUDE_DIR}/fmt/format.h)
    set(torch_definitions FMT_HEADER_ONLY)
  endif()
  target_compile_definitions(dgc_torch_headers PRIVATE ${torch_definitions})
endif()
function(dgc_use_torch_headers)
  dgc_use_headers(dgc_torch_headers ${ARGN})
  foreach(target IN LISTS ARGN)
    target_compile_definitions(${target} PRIVATE ${torch_definitions})
  endforeach()
  if(DGC_UNITY)
    set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  endif()
endfunction()
