#include "coordinator/rpc/template_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/spec/parse.h"
#include "common/spec/scheduling.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "coordinator/core/state.h"
#include "coordinator/security/principal.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

v1::Template Described(const v1::TemplateRecord& record) {
  v1::Template described = record.template_();
  described.set_etag(EtagOf(record.version()));
  return described;
}

absl::Status CheckTemplate(const v1::Template& wanted) {
  const std::vector<absl::string_view> parts = absl::StrSplit(wanted.name(), '/');
  // Of the same form as a queue's.
  if (ProjectOfTemplate(wanted.name()).empty() || !IsQueueId(parts[3])) {
    return absl::InvalidArgumentError(
        absl::StrCat("template.name: expected projects/PROJECT/templates/ID, both of 1 to 63 "
                     "letters, digits, '-', '_' and '.', not '",
                     wanted.name().substr(0, 200), "'"));
  }
  return CheckSpecTemplate(wanted.spec_yaml(), "template.spec_yaml");
}

absl::Status CheckEtag(const std::string& given, const v1::TemplateRecord& record) {
  if (given.empty() || given == EtagOf(record.version())) return absl::OkStatus();
  return EtagMismatch(record.template_().name(), given, record.version());
}

}  // namespace

std::string TemplateName(absl::string_view project, absl::string_view id) {
  return absl::StrCat("projects/", project, "/templates/", id);
}

std::string ProjectOfTemplate(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  const bool good = parts.size() == 4 && parts[0] == "projects" && parts[2] == "templates" &&
                    CheckProject(parts[1]).ok();
  return good ? std::string(parts[1]) : "";
}

absl::Status TemplateTable::Load() {
  MP_ASSIGN_OR_RETURN(std::vector<v1::TemplateRecord> records, store_->LoadTemplates());
  absl::MutexLock lock(&mutex_);
  for (v1::TemplateRecord& record : records) {
    std::string name = record.template_().name();
    records_[std::move(name)] = std::move(record);
  }
  return absl::OkStatus();
}

absl::StatusOr<const v1::TemplateRecord*> TemplateTable::FindLocked(const std::string& name) const {
  const auto found = records_.find(name);
  if (found != records_.end()) return &found->second;
  return Refusal(v1::ERROR_REASON_TEMPLATE_NOT_FOUND, name,
                 absl::StrCat("there is no template '", CutUtf8(name, 200),
                              "': see `milepost template list`"));
}

absl::StatusOr<v1::Template> TemplateTable::Get(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(const v1::TemplateRecord* record, FindLocked(name));
  return Described(*record);
}

std::vector<v1::Template> TemplateTable::List(
    const std::string& after, int limit, const std::function<bool(const std::string&)>& wanted) {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Template> templates;
  for (auto it = records_.upper_bound(after);
       it != records_.end() && static_cast<int>(templates.size()) < limit; ++it) {
    if (!wanted(ProjectOfTemplate(it->first))) continue;
    templates.push_back(Described(it->second));
    templates.back().clear_spec_yaml();
  }
  return templates;
}

absl::Status TemplateTable::CheckRoomLocked(const std::string& project) const {
  const auto of_project = std::count_if(records_.begin(), records_.end(), [&](const auto& entry) {
    return ProjectOfTemplate(entry.first) == project;
  });
  const bool room = static_cast<size_t>(of_project) < limits_.of_project;
  if (room && records_.size() < limits_.of_all) return absl::OkStatus();
  return Refusal(v1::ERROR_REASON_TOO_MANY_TEMPLATES, absl::StrCat("projects/", project),
                 absl::StrCat("there are ", of_project, " templates of project ", project,
                              " (at most ", limits_.of_project, ") and ", records_.size(),
                              " of all (at most ", limits_.of_all, "): delete one first"));
}

absl::StatusOr<v1::Template> TemplateTable::Put(const v1::Template& wanted,
                                                const PutOptions& options, absl::Time now) {
  MP_RETURN_IF_ERROR(CheckTemplate(wanted));
  absl::MutexLock lock(&mutex_);
  const auto found = FindLocked(wanted.name());
  if (found.ok() && options.create) {
    return Refusal(v1::ERROR_REASON_TEMPLATE_EXISTS, wanted.name(),
                   absl::StrCat("there is a template '", wanted.name(), "' already"));
  }
  if (!found.ok() && !options.create && !options.allow_missing) return found.status();
  v1::TemplateRecord record;
  v1::Template* changed = record.mutable_template_();
  changed->set_name(wanted.name());
  changed->set_spec_yaml(wanted.spec_yaml());
  *changed->mutable_create_time() = *changed->mutable_update_time() = ToProto(now);
  // Not one that a template of this name, since deleted, has had.
  record.set_version(absl::ToUnixMicros(now));
  if (found.ok()) {
    MP_RETURN_IF_ERROR(CheckEtag(wanted.etag(), **found));
    *changed->mutable_create_time() = (*found)->template_().create_time();
    record.set_version(std::max(record.version(), (*found)->version() + 1));
  } else {
    if (!options.create && !wanted.etag().empty()) {
      return EtagMismatch(wanted.name(), wanted.etag(), 0);
    }
    MP_RETURN_IF_ERROR(CheckRoomLocked(ProjectOfTemplate(wanted.name())));
  }
  if (!options.validate_only) {
    MP_RETURN_IF_ERROR(store_->PutTemplate(record));
    records_[wanted.name()] = record;
  }
  return Described(record);
}

absl::Status TemplateTable::Delete(const std::string& name, const std::string& etag) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(const v1::TemplateRecord* record, FindLocked(name));
  MP_RETURN_IF_ERROR(CheckEtag(etag, *record));
  MP_RETURN_IF_ERROR(store_->DeleteTemplate(name));
  records_.erase(name);
  return absl::OkStatus();
}

}  // namespace milepost::coordinator
