// The page's files, as they are in client/web/page. The build embeds them into the program.
#ifndef MILEPOST_CLIENT_WEB_PAGE_FILES_H_
#define MILEPOST_CLIENT_WEB_PAGE_FILES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace milepost::client {

struct PageFile {
  absl::string_view name;  // "index.html"
  absl::string_view content;
};

absl::Span<const PageFile> PageFiles();

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_PAGE_FILES_H_
