#include "common/spec/parse.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cmath>
#include <optional>
#include <set>
#include <type_traits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/spec/auto_fields.h"
#include "common/spec/byte_size.h"
#include "common/spec/duration.h"
#include "common/spec/nearest.h"
#include "common/spec/to_yaml.h"
#include "common/spec/yaml_tree.h"
#include "common/status_macros.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxProblems = 10;
constexpr size_t kMaxShownValue = 40;

// A value as it is shown in a message: one short printable line.
std::string Shown(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMapping:
      return "a mapping";
    case YamlNode::Kind::kScalar:
      break;
  }
  std::string shown = node.scalar.substr(0, kMaxShownValue);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  if (node.scalar.size() > kMaxShownValue) shown += "...";
  return node.quoted ? absl::StrCat("the text \"", shown, "\"") : absl::StrCat("'", shown, "'");
}

std::string EnumChoices(const EnumDescriptor& type, std::vector<std::string>* names) {
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names->push_back(EnumYamlName(*type.value(i)));
  }
  return absl::StrJoin(*names, ", ");
}

class Converter {
 public:
  Converter(absl::string_view filename, FieldLines* lines) : filename_(filename), lines_(lines) {}

  void Fill(const YamlNode& node, const std::string& path, Message* message) {
    if (node.kind != YamlNode::Kind::kMapping) {
      const std::string what = path.empty() ? "the document" : path;
      Problem(node.line, what, absl::StrCat("expected a mapping of fields, got ", Shown(node)));
      return;
    }
    std::set<std::string> seen;
    for (const auto& [key, value] : node.fields) {
      if (key.kind != YamlNode::Kind::kScalar) {
        Problem(key.line, path, absl::StrCat("expected a field name, got ", Shown(key)));
        continue;
      }
      if (!seen.insert(key.scalar).second) {
        Problem(key.line, Join(path, key.scalar), "given twice: keep one");
        continue;
      }
      FillField(key, value, path, message);
    }
  }

  absl::Status Result() const {
    if (count_ == 0) return absl::OkStatus();
    std::string text = absl::StrJoin(problems_, "\n");
    if (count_ > problems_.size()) {
      absl::StrAppend(&text, "\n", filename_, ": and ", count_ - problems_.size(), " more");
    }
    return absl::InvalidArgumentError(text);
  }

 private:
  static std::string Join(const std::string& path, const std::string& name) {
    const std::string shown = name.substr(0, kMaxShownValue);
    return path.empty() ? shown : absl::StrCat(path, ".", shown);
  }

  void Problem(int line, const std::string& path, absl::string_view problem) {
    if (++count_ > kMaxProblems) return;
    problems_.push_back(absl::StrCat(filename_, ":", std::max(line, 1), ": ", path,
                                     path.empty() ? "" : ": ", problem));
  }

  void FillField(const YamlNode& key, const YamlNode& value, const std::string& path,
                 Message* message) {
    const Descriptor* type = message->GetDescriptor();
    const FieldDescriptor* field = type->FindFieldByName(key.scalar);
    const std::string here = Join(path, key.scalar);
    if (field == nullptr) {
      std::vector<std::string> names;
      for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
      const std::string hint = DidYouMeanField(key.scalar, names);
      Problem(key.line, here,
              absl::StrCat("unknown field", hint.empty() ? "; expected one of " : "",
                           hint.empty() ? absl::StrJoin(names, ", ") : hint));
      return;
    }
    if (lines_ != nullptr) (*lines_)[here] = key.line;
    const auto* oneof = field->real_containing_oneof();
    const auto* reflection = message->GetReflection();
    if (oneof != nullptr && reflection->HasOneof(*message, oneof)) {
      const FieldDescriptor* other = reflection->GetOneofFieldDescriptor(*message, oneof);
      Problem(key.line, here,
              absl::StrCat("only one of ", oneof->name(), " can be given, and ",
                           Join(path, other->name()), " is: keep one"));
      return;
    }
    if (field->is_map()) {
      FillTexts(value, here, field, message);
    } else if (field->is_repeated()) {
      FillList(value, here, field, message);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Fill(value, here, reflection->MutableMessage(message, field));
    } else {
      FillScalar(value, here, field, message);
    }
  }

  // From names to texts: no field is a map of anything else. A number is the text that was written.
  void FillTexts(const YamlNode& value, const std::string& path, const FieldDescriptor* field,
                 Message* message) {
    const auto* type = field->message_type();
    MP_CHECK(type->map_key()->cpp_type() == FieldDescriptor::CPPTYPE_STRING &&
             type->map_value()->cpp_type() == FieldDescriptor::CPPTYPE_STRING)
        << field->full_name();
    if (value.kind != YamlNode::Kind::kMapping) {
      Problem(value.line, path,
              absl::StrCat("expected a mapping of names to texts, got ", Shown(value)));
      return;
    }
    std::set<std::string> seen;
    for (const auto& [key, text] : value.fields) {
      const std::string here = Join(path, key.scalar);
      if (key.kind != YamlNode::Kind::kScalar) {
        Problem(key.line, path, absl::StrCat("expected a name, got ", Shown(key)));
      } else if (!seen.insert(key.scalar).second) {
        Problem(key.line, here, "given twice: keep one");
      } else if (text.kind != YamlNode::Kind::kScalar) {
        Problem(text.line, here, absl::StrCat("expected text, got ", Shown(text)));
      } else {
        if (lines_ != nullptr) (*lines_)[here] = key.line;
        Message* entry = message->GetReflection()->AddMessage(message, field);
        entry->GetReflection()->SetString(entry, type->map_key(), key.scalar);
        entry->GetReflection()->SetString(entry, type->map_value(), text.scalar);
      }
    }
  }

  // Of mappings, whole numbers or texts: no field is a list of anything else.
  void FillList(const YamlNode& value, const std::string& path, const FieldDescriptor* field,
                Message* message) {
    const bool mappings = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const bool texts = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    MP_CHECK(mappings || texts || field->cpp_type() == FieldDescriptor::CPPTYPE_INT64)
        << field->full_name();
    const auto* reflection = message->GetReflection();
    if (value.kind != YamlNode::Kind::kSequence) {
      Problem(value.line, path, absl::StrCat("expected a list, got ", Shown(value)));
      return;
    }
    for (size_t i = 0; i < value.items.size(); ++i) {
      const std::string here = absl::StrCat(path, "[", i, "]");
      if (lines_ != nullptr) (*lines_)[here] = value.items[i].line;
      if (mappings) {
        Fill(value.items[i], here, reflection->AddMessage(message, field));
      } else if (texts && value.items[i].kind == YamlNode::Kind::kScalar) {
        reflection->AddString(message, field, value.items[i].scalar);
      } else if (texts) {
        Problem(value.items[i].line, here,
                absl::StrCat("expected text, got ", Shown(value.items[i])));
      } else if (const auto number = Integer<int64_t>(value.items[i], here, field)) {
        reflection->AddInt64(message, field, *number);
      }
    }
  }

  void FillScalar(const YamlNode& value, const std::string& path, const FieldDescriptor* field,
                  Message* message) {
    const auto* reflection = message->GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        if (auto v = Integer<int32_t>(value, path, field)) reflection->SetInt32(message, field, *v);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        if (auto v = Integer<int64_t>(value, path, field)) reflection->SetInt64(message, field, *v);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        if (auto v = Integer<uint64_t>(value, path, field))
          reflection->SetUInt64(message, field, *v);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (auto v = Double(value, path, field)) reflection->SetDouble(message, field, *v);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        if (auto v = Bool(value, path)) reflection->SetBool(message, field, *v);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        if (auto v = Enum(value, path, *field->enum_type())) {
          reflection->SetEnumValue(message, field, *v);
        }
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        if (value.kind == YamlNode::Kind::kScalar) {
          reflection->SetString(message, field, value.scalar);
        } else {
          Problem(value.line, path, absl::StrCat("expected text, got ", Shown(value)));
        }
        break;
      default:
        MP_CHECK(false) << "no YAML form for the type of " << field->full_name();
    }
  }

  template <typename T>
  std::optional<T> Integer(const YamlNode& value, const std::string& path,
                           const FieldDescriptor* field) {
    T parsed;
    const bool plain = value.kind == YamlNode::Kind::kScalar && !value.quoted;
    if (plain && absl::SimpleAtoi(value.scalar, &parsed)) return parsed;
    const bool may_be_auto = field->options().GetExtension(v1::may_be_auto);
    if (may_be_auto && value.scalar == "auto") return static_cast<T>(kAuto);
    if (field->options().GetExtension(v1::is_bytes)) {
      if (const auto bytes = ParseByteSize(value.scalar)) return static_cast<T>(*bytes);
      Problem(value.line, path,
              absl::StrCat("expected bytes such as 80GiB, 512MiB or 1000000, got ", Shown(value)));
      return std::nullopt;
    }
    double real;
    if (plain && absl::SimpleAtod(value.scalar, &real) && std::isfinite(real) &&
        real == std::floor(real)) {
      const bool written_plainly = value.scalar.find_first_of(".eE") == std::string::npos;
      Problem(value.line, path,
              written_plainly
                  ? absl::StrCat("expected a whole number from ", std::numeric_limits<T>::min(),
                                 " to ", std::numeric_limits<T>::max(), ", got ", Shown(value))
                  : absl::StrCat("expected a whole number in digits only, got ", Shown(value)));
      return std::nullopt;
    }
    Problem(value.line, path,
            absl::StrCat("expected a whole number", may_be_auto ? " or auto" : "", ", got ",
                         Shown(value)));
    return std::nullopt;
  }

  std::optional<double> Double(const YamlNode& value, const std::string& path,
                               const FieldDescriptor* field) {
    double parsed;
    if (field->options().GetExtension(v1::is_duration)) {
      if (const auto seconds = ParseSeconds(value.scalar)) return *seconds;
      Problem(
          value.line, path,
          absl::StrCat("expected a length of time such as 90m, 12h or 1d12h, got ", Shown(value)));
      return std::nullopt;
    }
    if (value.kind == YamlNode::Kind::kScalar && !value.quoted &&
        absl::SimpleAtod(value.scalar, &parsed) && std::isfinite(parsed)) {
      return parsed;
    }
    Problem(value.line, path, absl::StrCat("expected a number, got ", Shown(value)));
    return std::nullopt;
  }

  std::optional<bool> Bool(const YamlNode& value, const std::string& path) {
    const bool plain = value.kind == YamlNode::Kind::kScalar && !value.quoted;
    if (plain && value.scalar == "true") return true;
    if (plain && value.scalar == "false") return false;
    Problem(value.line, path, absl::StrCat("expected true or false, got ", Shown(value)));
    return std::nullopt;
  }

  std::optional<int> Enum(const YamlNode& value, const std::string& path,
                          const EnumDescriptor& type) {
    if (value.kind == YamlNode::Kind::kScalar) {
      for (int i = 0; i < type.value_count(); ++i) {
        const auto* candidate = type.value(i);
        if (candidate->number() != 0 && EnumYamlName(*candidate) == value.scalar) {
          return candidate->number();
        }
      }
    }
    std::vector<std::string> names;
    const std::string choices = EnumChoices(type, &names);
    Problem(value.line, path,
            absl::StrCat("expected ", names.size() > 1 ? "one of " : "", choices, ", got ",
                         Shown(value), DidYouMean(value.scalar, names)));
    return std::nullopt;
  }

  const std::string filename_;
  FieldLines* lines_;
  std::vector<std::string> problems_;
  size_t count_ = 0;
};

}  // namespace

absl::Status FillMessage(const YamlNode& root, absl::string_view filename, Message* message,
                         FieldLines* lines) {
  Converter converter(filename, lines);
  converter.Fill(root, "", message);
  return converter.Result();
}

absl::Status ParseYamlMessage(absl::string_view text, absl::string_view filename, Message* message,
                              FieldLines* lines) {
  MP_ASSIGN_OR_RETURN(const YamlNode root, ParseYamlTree(text, filename));
  return FillMessage(root, filename, message, lines);
}

absl::StatusOr<v1::JobSpec> ParseJobSpecYaml(absl::string_view text, absl::string_view filename,
                                             FieldLines* lines) {
  v1::JobSpec spec;
  MP_RETURN_IF_ERROR(ParseYamlMessage(text, filename, &spec, lines));
  return spec;
}

}  // namespace milepost
