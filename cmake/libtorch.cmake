# Finds libtorch: the library that an active virtual environment or CMAKE_PREFIX_PATH brings (also in
# the form of torch.utils.cmake_prefix_path), or the system's. Used by the build and, installed, by
# dgcConfig.cmake. Sets DGC_TORCH_CPU_LIBRARY, DGC_C10_LIBRARY, DGC_TORCH_INCLUDE_DIR and
# DGC_TORCH_VERSION.
#
# Not find_package(Torch): Debian's wants parts of Caffe2 that no package has, and links more than is
# used.
set(dgc_torch_places ${CMAKE_PREFIX_PATH})
list(TRANSFORM dgc_torch_places REPLACE "/share/cmake/?$" "")
if(DEFINED ENV{VIRTUAL_ENV})
  file(GLOB dgc_torch_places_active $ENV{VIRTUAL_ENV}/lib/python3*/site-packages/torch)
  list(APPEND dgc_torch_places ${dgc_torch_places_active})
endif()
# Installed with dgc::torch: dgc_torch_place and dgc_torch_version, of the libtorch that it was
# compiled for.
include(${CMAKE_CURRENT_LIST_DIR}/dgc_torch_built_for.cmake OPTIONAL)
list(APPEND dgc_torch_places ${dgc_torch_place})
find_library(DGC_TORCH_CPU_LIBRARY torch_cpu HINTS ${dgc_torch_places} PATH_SUFFIXES lib)
find_library(DGC_C10_LIBRARY c10 HINTS ${dgc_torch_places} PATH_SUFFIXES lib)
find_path(DGC_TORCH_INCLUDE_DIR torch/csrc/api/include/torch/torch.h
          HINTS ${dgc_torch_places} PATH_SUFFIXES include)

# PyTorch's own packages before 2.7 were compiled with the old layout of std::string (2.6: some of
# them). Programs would compile with them, and then miss symbols.
if(DGC_C10_LIBRARY)
  file(STRINGS ${DGC_C10_LIBRARY} dgc_new_strings LIMIT_COUNT 1 REGEX "__cxx11")
  if(NOT dgc_new_strings)
    message(FATAL_ERROR "${DGC_C10_LIBRARY} was compiled with the old C++ ABI "
            "(_GLIBCXX_USE_CXX11_ABI=0). Use PyTorch 2.7 or newer, or Debian's libtorch-dev.")
  endif()
endif()

set(DGC_TORCH_VERSION "")
foreach(dgc_file IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT DGC_TORCH_VERSION AND EXISTS ${DGC_TORCH_INCLUDE_DIR}/${dgc_file})
    file(STRINGS ${DGC_TORCH_INCLUDE_DIR}/${dgc_file} dgc_numbers
         REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    list(TRANSFORM dgc_numbers REPLACE "[^0-9]" "")
    list(JOIN dgc_numbers "." DGC_TORCH_VERSION)
  endif()
endforeach()
if(dgc_torch_version AND NOT DGC_TORCH_VERSION VERSION_EQUAL dgc_torch_version)
  message(FATAL_ERROR "dgc::torch was compiled for libtorch ${dgc_torch_version}, but "
          "${DGC_TORCH_CPU_LIBRARY} is ${DGC_TORCH_VERSION}. Name the folder of the first in "
          "CMAKE_PREFIX_PATH, or build dgc for the second.")
endif()
