# Takes all that needs no libtorch from the build folder DGC_CORE_BUILD, under the names that it has
# where it is built (offer_core_build.cmake).
if(NOT EXISTS ${DGC_CORE_BUILD}/dgc_core_build.cmake)
  message(FATAL_ERROR "DGC_CORE_BUILD: ${DGC_CORE_BUILD} is not a build folder of dgc. Configure it, "
          "and build its target dgc_core_build.")
endif()
include(${DGC_CORE_BUILD}/dgc_core_build.cmake)
add_library(dgc_core ALIAS dgc::core)
add_library(dgc_engines ALIAS dgc::engines)
foreach(target IN ITEMS data catalogue hub hub_member train_settings report plan process bench commands
                        test_support)
  if(TARGET dgc::dgc_${target})
    add_library(dgc_${target} ALIAS dgc::dgc_${target})
  endif()
endforeach()
