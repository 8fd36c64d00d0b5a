// A result as text, JSON, CSV and HTML.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "clients/load/result.h"

namespace ovq::load {

std::string TextReport(const Result& result);
// Keys of `vllm bench serve`, and everything else under "ovq".
std::string JsonReport(const Result& result);
std::string CsvReport(const Result& result);   // a row for every request
std::string HtmlReport(const Result& result);  // needs no other file

// The files that the options ask for.
absl::Status WriteReports(const Result& result);

// One line of a sweep's table, and the line above them all; both end with a newline.
std::string SweepHeader(const Options& options);
std::string SweepLine(const Level& level);

}  // namespace ovq::load
