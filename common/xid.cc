#include "common/xid.h"

#include "absl/strings/str_cat.h"

namespace milepost {
namespace {

const char* Meaning(int code) {
  switch (code) {
    case 13:
      return "a kernel of the program failed";
    case 31:
      return "the program accessed memory that is not its own";
    case 43:
      return "the program's work was stopped after an error of its own";
    case 45:
      return "the program's work was stopped after an earlier error";
    case 48:
      return "memory error that could not be corrected: reset the GPU";
    case 62:
    case 119:
    case 120:
      return "the GPU's own processor failed: reset the GPU";
    case 63:
      return "a damaged row of memory was put aside: reset the GPU when it is free";
    case 64:
      return "a damaged row of memory could not be put aside: replace the GPU";
    case 74:
      return "NVLink error: reset the GPU; look at its connection where it comes again";
    case 79:
      return "the GPU has fallen off the bus: restart the host; look at its power and cooling "
             "where "
             "it comes again";
    case 92:
      return "many memory errors were corrected: replace the GPU when it is free";
    case 94:
      return "memory error that ended one program";
    case 95:
      return "memory error that could not be contained: reset the GPU";
    default:
      return nullptr;
  }
}

}  // namespace

bool XidNeedsCheck(int code) {
  switch (code) {
    case 48:
    case 62:
    case 64:
    case 74:
    case 79:
    case 95:
    case 119:
    case 120:
      return true;
    default:  // a program's own, or one that the driver has dealt with
      return false;
  }
}

std::string XidText(int code) {
  const char* meaning = Meaning(code);
  return meaning == nullptr ? absl::StrCat(code) : absl::StrCat(code, ", ", meaning);
}

}  // namespace milepost
