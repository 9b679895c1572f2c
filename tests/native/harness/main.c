/* harness copies | words ROUNDS | calls SEED ROUNDS */

#include "harness.h"

#include <string.h>

int
main(int count, char **given)
{
    if (count == 2 && strcmp(given[1], "copies") == 0)
        check_copies();
    else if (count == 3 && strcmp(given[1], "words") == 0)
        check_words(atoi(given[2]));
    else if (count == 4 && strcmp(given[1], "calls") == 0)
        check_calls(strtoull(given[2], NULL, 10), atoi(given[3]));
    else
        return 2;
    puts("good");
    return 0;
}
