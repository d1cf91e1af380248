include(CMakePackageConfigHelpers)

# One export for each component: who wants the compressor alone needs neither Gloo nor MPI, and
# libtorch is looked for only by those who ask for it.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dgc)
foreach(component IN ITEMS core engines torch)
  if(TARGET dgc_${component})
    install(TARGETS dgc_${component} EXPORT dgc_${component}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT dgc_${component} NAMESPACE dgc:: DESTINATION ${package_dir})
  endif()
endforeach()
if(TARGET dgc_command)
  install(TARGETS dgc_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET dgc_torch_command)
  install(TARGETS dgc_torch_command RUNTIME DESTINATION libexec/dgc)
endif()
install(DIRECTORY include/dgc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/dgc/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dgc)

configure_package_config_file(cmake/dgcConfig.cmake.in dgcConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(dgcConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dgcConfig.cmake ${PROJECT_BINARY_DIR}/dgcConfigVersion.cmake
              cmake/dependencies.cmake
        DESTINATION ${package_dir})

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
  install(FILES ${PROJECT_BINARY_DIR}/${package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
