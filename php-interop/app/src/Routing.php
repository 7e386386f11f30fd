<?php

namespace App;

/** The queue given by `--queue`, for classes that name their own queue. */
final class Routing
{
    public static ?string $queue = null;
}
