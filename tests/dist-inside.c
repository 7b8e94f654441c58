/* Counts the frames of host:SOURCE: a first program of a user of libweir-dev. */
#include <stdio.h>
#include <stdlib.h>

#include <weir.h>

int main(int argc, char **argv)
{
    struct weir_options options = weir_default_options();
    const struct weir_frame *frame;
    unsigned long frames = 0, most = 0;
    char error[256];
    weir_feed *feed;
    int result = 0;

    if (argc > 2)
        options.filter = argv[2];
    if (argc > 3)
        most = strtoul(argv[3], NULL, 10);
    if (weir_open(&feed, argc > 1 ? argv[1] : "", &options, error, sizeof(error)) < 0) {
        fprintf(stderr, "%s\n", error);
        return 2;
    }
    while ((most == 0 || frames < most) && (result = weir_next_frame(feed, &frame, 60000)) > 0)
        frames++;
    if (result <= 0 && result != WEIR_END)
        fprintf(stderr, "after %lu frames: %s\n", frames, result == 0 ? "no more came" : weir_error(feed));
    printf("%lu\n", frames);
    weir_close(feed);
    return result <= 0 && result != WEIR_END;
}
