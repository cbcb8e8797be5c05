# Writes OUTPUT, a C++ file with the text of SCRIPT: TokenizeScript() in client/cli/tokenize.h.
file(READ ${SCRIPT} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUTPUT} "#include \"client/cli/tokenize.h\"\n\nnamespace milepost::client {\n"
  "namespace {\nconstexpr unsigned char kScript[] = {${bytes}};\n}  // namespace\n"
  "absl::string_view TokenizeScript() {\n"
  "  return {reinterpret_cast<const char*>(kScript), sizeof kScript};\n}\n"
  "}  // namespace milepost::client\n")
