<?php

namespace App\Contracts;

use Illuminate\Contracts\Queue\ShouldQueue;

interface Exportable extends ShouldQueue
{
}
