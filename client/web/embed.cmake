# Writes OUTPUT, a C++ file with the contents of FILES: client/web/page_files.h.
set(content "#include \"client/web/page_files.h\"\n\nnamespace milepost::client {\n")
set(table "")
set(index 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND content
    "namespace {\nconstexpr unsigned char kFile${index}[] = {${bytes}};\n}  // namespace\n")
  string(APPEND table "    {\"${name}\", {reinterpret_cast<const char*>(kFile${index}), "
    "sizeof kFile${index}}},\n")
  math(EXPR index "${index} + 1")
endforeach()
string(APPEND content "absl::Span<const PageFile> PageFiles() {\n"
  "  static const PageFile kFiles[] = {\n${table}  };\n  return kFiles;\n}\n"
  "}  // namespace milepost::client\n")
file(WRITE ${OUTPUT} "${content}")
