# Writes OUTPUT, a C++ source with each of ASSETS (files in src/LAYER) as a string: page.css becomes
# dgc::LAYER::asset::page_css, which LAYER/assets.h declares.
set(text "#include \"${LAYER}/assets.h\"\n\nnamespace dgc::${LAYER}::asset {\n")
foreach(asset IN LISTS ASSETS)
  file(READ "${FOLDER}/${asset}" contents)
  string(MAKE_C_IDENTIFIER "${asset}" name)
  string(APPEND text "\nconst std::string_view ${name} = R\"asset(${contents})asset\";\n")
endforeach()
string(APPEND text "\n}  // namespace dgc::${LAYER}::asset\n")
file(WRITE "${OUTPUT}" "${text}")
