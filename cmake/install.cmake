include(CMakePackageConfigHelpers)

# One export for each component: who wants the compressor alone needs neither Gloo nor MPI, and
# libtorch is looked for only by those who ask for it.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dgc)
set(components core engines torch)
if(DGC_CORE_BUILD)
  set(components torch)  # the others are installed from there: cmake --install … --component core
endif()
foreach(component IN LISTS components)
  if(TARGET dgc_${component})
    install(TARGETS dgc_${component} EXPORT dgc_${component} COMPONENT ${component}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT dgc_${component} NAMESPACE dgc:: DESTINATION ${package_dir}
            COMPONENT ${component})
  endif()
endforeach()
if(TARGET dgc_torch)
  get_filename_component(torch_place ${DGC_TORCH_CPU_LIBRARY} DIRECTORY)
  get_filename_component(torch_place ${torch_place} DIRECTORY)
  file(WRITE ${PROJECT_BINARY_DIR}/dgc_torch_built_for.cmake
       "set(dgc_torch_place ${torch_place})\nset(dgc_torch_version ${DGC_TORCH_VERSION})\n")
  install(FILES ${PROJECT_BINARY_DIR}/dgc_torch_built_for.cmake DESTINATION ${package_dir}
          COMPONENT torch)
endif()
if(TARGET dgc_command)
  install(TARGETS dgc_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
endif()
if(TARGET dgc_torch_command)
  install(TARGETS dgc_torch_command RUNTIME DESTINATION libexec/dgc COMPONENT command)
endif()
install(DIRECTORY include/dgc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT core
        FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/dgc/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dgc COMPONENT core)

configure_package_config_file(cmake/dgcConfig.cmake.in dgcConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(dgcConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dgcConfig.cmake ${PROJECT_BINARY_DIR}/dgcConfigVersion.cmake
              cmake/dependencies.cmake cmake/libtorch.cmake
        DESTINATION ${package_dir} COMPONENT core)

# Neither Gloo nor every MPI has a pkg-config file.
set(DGC_ENGINE_LIBS "")
if(DGC_WITH_GLOO)
  string(APPEND DGC_ENGINE_LIBS "-lgloo ")
endif()
if(DGC_WITH_MPI)
  list(JOIN MPI_CXX_LIBRARIES " " mpi_libraries)
  string(APPEND DGC_ENGINE_LIBS "${mpi_libraries}")
endif()
foreach(package IN ITEMS dgc dgc-engines)
  configure_file(cmake/${package}.pc.in ${package}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT core)
endforeach()
