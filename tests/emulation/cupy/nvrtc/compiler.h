/* g++ as a function. */
#ifndef STANDIN_COMPILER_H
#define STANDIN_COMPILER_H

#include <map>
#include <string>
#include <vector>

/* A shared object of a kernel's text.  What was compiled before, by any process, is taken from the stand-in's folder.
 * False, with what the compiler said, where it refuses. */
bool compile_object(const std::string &text, const std::map<std::string, std::string> &headers,
                    const std::vector<std::string> &flags, std::string &object, std::string &log);

std::string stand_in_folder();

#endif
