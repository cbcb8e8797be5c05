# Writes OUTPUT, a C++ file with FUNCTION, which returns the text of SCRIPT. HEADER declares it.
file(READ ${SCRIPT} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUTPUT} "#include \"${HEADER}\"\n\nnamespace milepost::client {\n"
  "namespace {\nconstexpr unsigned char k${FUNCTION}[] = {${bytes}};\n}  // namespace\n"
  "absl::string_view ${FUNCTION}() {\n"
  "  return {reinterpret_cast<const char*>(k${FUNCTION}), sizeof k${FUNCTION}};\n}\n"
  "}  // namespace milepost::client\n")
