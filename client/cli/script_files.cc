#include "client/cli/script_files.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/api/files_client.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "common/status_macros.h"

namespace milepost::client {

SpecFiller ScriptFiles::Filler() {
  return {"script.files", [this](v1::JobSpec* spec) { return Pack(spec); }};
}

absl::Status ScriptFiles::Pack(v1::JobSpec* spec) {
  const std::string folder = spec->script().files();
  if (folder.empty()) return absl::OkStatus();
  if (!spec->script().folder().empty() || spec->script().has_sent_files()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job runs in files that are sent along, or in script.folder on its hosts: "
        "remove script.",
        spec->script().has_sent_files() ? "sent_files" : "folder", " or script.files"));
  }
  MP_ASSIGN_OR_RETURN(*spec->mutable_script()->mutable_sent_files(), PackThis(folder));
  spec->mutable_script()->clear_files();
  return absl::OkStatus();
}

absl::StatusOr<v1::SentFiles> ScriptFiles::PackThis(const std::string& folder) {
  MP_ASSIGN_OR_RETURN(PackedFiles packed, PackFolder(folder));
  v1::SentFiles sent;
  sent.set_sha256(packed.sha256);
  sent.set_bytes(packed.bytes);
  folder_ = folder;
  packed_ = std::move(packed);
  return sent;
}

absl::Status ScriptFiles::PackOverrides(Overrides* overrides) {
  Overrides changed;
  const auto set = [&](absl::string_view path, absl::string_view value) {
    v1::SpecOverride* one = changed.Add();
    one->set_path(std::string(path));
    one->set_value(std::string(value));
  };
  for (const v1::SpecOverride& one : *overrides) {
    if (one.path() != "script.files") {
      *changed.Add() = one;
      continue;
    }
    v1::JobSpec given;  // the value as YAML has it: in quotes, or null
    MP_RETURN_IF_ERROR(ApplyOverrides(Overrides(&one, &one + 1), "--set", &given));
    if (given.script().files().empty()) {
      set("script.sent_files", "null");
      continue;
    }
    std::error_code error;
    const std::string folder = std::filesystem::absolute(given.script().files(), error).string();
    const absl::StatusOr<v1::SentFiles> sent = PackThis(folder);
    if (!sent.ok()) return Annotate(sent.status(), "--set script.files");
    set("script.folder", "null");
    set("script.sent_files.sha256", sent->sha256());
    set("script.sent_files.bytes", absl::StrCat(sent->bytes()));
  }
  *overrides = std::move(changed);
  return absl::OkStatus();
}

absl::Status ScriptFiles::Send(const std::shared_ptr<Connection>& connection,
                               const std::string& project) {
  if (!packed_.has_value()) return absl::OkStatus();
  FilesClient client(connection);
  MP_ASSIGN_OR_RETURN(const bool there, client.Has(project, packed_->sha256));
  const std::string what = absl::StrCat(packed_->files, packed_->files == 1 ? " file" : " files",
                                        " of ", folder_, " (", HumanBytes(packed_->bytes), ")");
  if (there) {
    Note(absl::StrCat("the coordinator has the ", what, " already"));
    return absl::OkStatus();
  }
  v1::SentFiles sent;
  sent.set_sha256(packed_->sha256);
  sent.set_bytes(packed_->bytes);
  MP_RETURN_IF_ERROR(client.Upload(project, sent, packed_->archive.get()));
  Note(absl::StrCat("sent ", what));
  return absl::OkStatus();
}

}  // namespace milepost::client
