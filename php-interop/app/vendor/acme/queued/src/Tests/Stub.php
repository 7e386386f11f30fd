<?php

namespace Acme\Queued\Tests;

use Illuminate\Contracts\Queue\ShouldQueue;

class Stub implements ShouldQueue
{
}
