// Errors of kernels and of calls of the runtime.
#pragma once

#include <string>

namespace ovq::simt {

// Keeps the text (simt.h: CollectErrors) or prints it and aborts.
void Report(const std::string& text);

// "function at file:line" of a code address as far as the debug information tells.
std::string Symbolize(const void* address);

}  // namespace ovq::simt
