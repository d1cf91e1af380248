# Lets another build of these sources, for another libtorch, take from this one all that needs no
# libtorch (DGC_CORE_BUILD). `cmake --build … --target dgc_core_build` builds that and no more.
set(offered "")
foreach(target IN ITEMS dgc_flags dgc_light_flags dgc_core dgc_engines dgc_data dgc_catalogue
                        dgc_hub dgc_hub_member dgc_train_settings dgc_web dgc_report dgc_plan
                        dgc_process dgc_bench dgc_commands dgc_test_support)
  if(TARGET ${target})
    list(APPEND offered ${target})
  endif()
endforeach()
# The names are those of the installed package: an installed dgc::torch refers to dgc::engines.
export(TARGETS ${offered} NAMESPACE dgc:: FILE dgc_core_build.cmake)
add_custom_target(dgc_core_build)
add_dependencies(dgc_core_build ${offered})
if(TARGET dgc_python_package)
  add_dependencies(dgc_core_build dgc_python_package)
endif()
