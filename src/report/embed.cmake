# Writes OUTPUT, a C++ source with each of ASSETS (files in FOLDER) as a string: page.css becomes
# dgc::report::asset::page_css.
set(text "#include \"report/assets.h\"\n\nnamespace dgc::report::asset {\n")
foreach(asset IN LISTS ASSETS)
  file(READ "${FOLDER}/${asset}" contents)
  string(MAKE_C_IDENTIFIER "${asset}" name)
  string(APPEND text "\nconst std::string_view ${name} = R\"asset(${contents})asset\";\n")
endforeach()
string(APPEND text "\n}  // namespace dgc::report::asset\n")
file(WRITE "${OUTPUT}" "${text}")
