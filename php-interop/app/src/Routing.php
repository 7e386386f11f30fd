<?php

namespace App;

/** The queue that `--queue` asked for, for classes that are asked where they want to go. */
final class Routing
{
    public static ?string $queue = null;
}
