// Rendering of a FolderReport for people and for programs.
#pragma once

#include <string>

#include "model/inspect/folder_report.h"

namespace ovq::model {

// Text for people. Problems come last, a line each, under a line with their number.
std::string ReportText(const FolderReport& report);
// One JSON object; docs/operations.md has its fields.
std::string ReportJson(const FolderReport& report);

}  // namespace ovq::model
