/* A library that keeps a program for a minute when it exits, at the end of calls that every program
 * makes: preloaded, so that there is time to read its stack. */
#include <unistd.h>

__attribute__((destructor)) static void stay(void)
{
	sleep(60);
}
