# Writes OUTPUT, a C++ file with FUNCTION, which returns the text of SCRIPT. HEADER declares it.
# MODULES: files, with commas between, that the script imports, each behind those that it imports.
# They become part of the text: nothing lies beside it when it runs.
set(program "")
if(MODULES)
  string(HEX "import sys
import types


def embedded(name, text):
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, name + \".py\", \"exec\"), vars(module))


" program)
endif()
string(REPLACE "," ";" modules "${MODULES}")
foreach(module IN LISTS modules)
  file(READ ${module} text)
  string(FIND "${text}" "'''" quotes)
  if(NOT quotes EQUAL -1)
    message(FATAL_ERROR "${module}: cannot be embedded: it has ''' within")
  endif()
  get_filename_component(name ${module} NAME_WE)
  string(HEX "embedded(\"${name}\", r'''" begin)
  file(READ ${module} hex HEX)
  string(HEX "''')\n" end)
  string(APPEND program "${begin}${hex}${end}")
endforeach()
file(READ ${SCRIPT} hex HEX)
string(APPEND program "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${program}")
file(WRITE ${OUTPUT} "#include \"${HEADER}\"\n\nnamespace milepost::client {\n"
  "namespace {\nconstexpr unsigned char k${FUNCTION}[] = {${bytes}};\n}  // namespace\n"
  "absl::string_view ${FUNCTION}() {\n"
  "  return {reinterpret_cast<const char*>(k${FUNCTION}), sizeof k${FUNCTION}};\n}\n"
  "}  // namespace milepost::client\n")
