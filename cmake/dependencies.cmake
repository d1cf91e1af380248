# What dgc::core and, with DGC_WITH_ENGINES, dgc::engines link against. Used by the build and, installed, by dgcConfig.cmake.
set(dgc_missing "")
set(dgc_packages "")
macro(dgc_need found name package)
  if(NOT ${found})
    list(APPEND dgc_missing ${name})
    list(APPEND dgc_packages ${package})
  endif()
endmacro()
find_package(Threads REQUIRED)
find_package(fmt QUIET)
dgc_need(fmt_FOUND fmt libfmt-dev)
find_package(PkgConfig QUIET)
dgc_need(PKG_CONFIG_FOUND pkg-config pkg-config)
if(PKG_CONFIG_FOUND)
  # Debian's Highway and xxHash have pkg-config files and no CMake packages.
  pkg_check_modules(DGC_HWY QUIET IMPORTED_TARGET libhwy)
  pkg_check_modules(DGC_XXHASH QUIET IMPORTED_TARGET libxxhash)
endif()
dgc_need(DGC_HWY_FOUND Highway libhwy-dev)
dgc_need(DGC_XXHASH_FOUND xxHash libxxhash-dev)
if(SKBUILD)
  find_package(nlohmann_json QUIET)  # of the PyTorch package alone: what is installed needs none
  dgc_need(nlohmann_json_FOUND nlohmann-json nlohmann-json3-dev)
endif()
if(DGC_WITH_ENGINES)
  find_package(OpenSSL QUIET COMPONENTS Crypto)
  dgc_need(OPENSSL_FOUND OpenSSL libssl-dev)
endif()
if(dgc_missing)
  list(JOIN dgc_missing ", " dgc_missing)
  list(JOIN dgc_packages " " dgc_packages)
  # A line that begins with a space is not wrapped.
  message(FATAL_ERROR "dgc needs what was not found: ${dgc_missing}. On Debian or Ubuntu:\n"
    "    sudo apt-get install ${dgc_packages}\n"
    "Elsewhere, install them with their headers. Where they are not in the usual places, set the "
    "environment variable CMAKE_PREFIX_PATH to the folder that has their lib/cmake and "
    "lib/pkgconfig.")
endif()
if(DGC_WITH_GLOO)
  find_package(Gloo REQUIRED)
endif()
if(DGC_WITH_TORCH AND NOT TARGET dgc_libtorch)
  include(${CMAKE_CURRENT_LIST_DIR}/libtorch.cmake)
  foreach(dgc_part IN ITEMS DGC_TORCH_CPU_LIBRARY DGC_C10_LIBRARY DGC_TORCH_INCLUDE_DIR)
    if(NOT ${dgc_part})
      message(FATAL_ERROR "libtorch was not found (${dgc_part}): install libtorch-dev, or activate a "
              "virtual environment that has PyTorch, or name its folder in CMAKE_PREFIX_PATH")
    endif()
  endforeach()
  add_library(dgc_libtorch INTERFACE IMPORTED)
  target_include_directories(dgc_libtorch INTERFACE
    ${DGC_TORCH_INCLUDE_DIR} ${DGC_TORCH_INCLUDE_DIR}/torch/csrc/api/include)
  # PyTorch's own packages have a copy of Gloo inside libtorch_cpu, with all its symbols visible. The
  # system's Gloo, which our engine is compiled for, has to come first, or its calls end in the copy.
  target_link_libraries(dgc_libtorch INTERFACE $<$<BOOL:${DGC_WITH_GLOO}>:gloo>
    ${DGC_TORCH_CPU_LIBRARY} ${DGC_C10_LIBRARY})
endif()
if(DGC_WITH_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C functions only
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
